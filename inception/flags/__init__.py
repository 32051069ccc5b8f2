"""The flags of the programs: tables, configs and checks."""
