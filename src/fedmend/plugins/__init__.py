"""Methods, backbones, partitioners, datasets and metrics from outside, by name."""
