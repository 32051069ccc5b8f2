"""Programs that benchmarks start: the processes of the trainings that they measure."""
