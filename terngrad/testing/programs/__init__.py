"""Programs as users write them, which tests start: loops and model.fit with terngrad."""
