"""Networks from images to logits, one file for each family."""
