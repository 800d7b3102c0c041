"""SOTOPIA: social episodes with private goals, goal checks that need no model, and a partner to train against."""
