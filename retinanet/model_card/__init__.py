"""What a checkpoint's weights are, for whoever is given them: `MODEL_CARD.md` beside them."""
