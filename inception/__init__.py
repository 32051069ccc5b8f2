"""The programs: they join slim's records and nets with terngrad's training."""
