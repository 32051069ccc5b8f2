"""What runs leave behind: log lines, figures, reports and pictures."""
