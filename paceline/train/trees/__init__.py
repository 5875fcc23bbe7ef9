"""What the trainers of boosted trees share; XGBoost and LightGBM have folders of their own."""
