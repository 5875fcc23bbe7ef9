"""What predictors are made of; the public names are in paceline.train.predictor and paceline.train.batch_predictor."""
