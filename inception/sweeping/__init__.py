"""Many trainings of one program: which ones, where they run, and what was found."""
