"""The ablation grid: claims first, arms as data, one process a cell, tables and verdicts from finished cells."""
