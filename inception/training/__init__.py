"""Trainings and evaluations as programs run them: prepare, build, train, evaluate."""
