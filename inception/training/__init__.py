"""Training and evaluation as the programs run them: prepare, build, train, evaluate."""
