"""RLFF-ESC (arXiv 2508.12935): rewards from imagined futures, and a policy that thinks before it replies."""
