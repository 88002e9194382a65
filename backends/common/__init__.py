"""What all backends share: sampling requests, packing, the loss, the learner's loop."""
