"""A frozen encoder as a source of features (paper, section 5.3)."""
