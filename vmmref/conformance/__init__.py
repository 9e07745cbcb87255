"""The check harness: drives any pool under test in lock step with the model and names the rules it breaks."""
