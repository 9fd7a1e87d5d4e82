"""`retinanet predict`: detect objects in pictures and videos."""
