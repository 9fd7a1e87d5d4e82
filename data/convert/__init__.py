"""From annotations in any known format to the index."""
