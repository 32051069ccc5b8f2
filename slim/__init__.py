"""From records to logits: data sets, preprocessing, input pipeline and nets."""
