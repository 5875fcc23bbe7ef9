"""The callbacks of `paceline.tune.integration`: a function trainable gives them to a framework, and they report."""
