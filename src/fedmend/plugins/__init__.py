"""Methods, backbones, partitioners and datasets from outside, by name."""
