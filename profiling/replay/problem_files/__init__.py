"""Problems of a log in the language of benchdnn, oneDNN's own benchmark."""
