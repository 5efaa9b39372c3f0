"""pytracer in the place of torch's recorder."""
