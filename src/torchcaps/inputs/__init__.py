"""What a model does to raw data: images are scaled and cropped, texts become the numbers of their words."""
