"""Measures beside self-play: distance, responsiveness, safety, suites of `rapo evaluate`, sheets for people."""
