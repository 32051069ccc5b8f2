"""The output of runs: log lines, figures, reports and pictures."""
