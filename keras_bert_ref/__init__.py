"""BERT for TensorFlow and Keras 3 (Devlin, Chang, Lee, Toutanova, NAACL 2019).

Importing this package is quick: TensorFlow is loaded when a name that needs it is first used.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "BertAdamW": "optimization",
    "BertClassifier": "models",
    "BertConfig": "config",
    "BertEncoder": "encoder",
    "BertError": "errors",
    "BertMultipleChoice": "models",
    "BertPretrainer": "models",
    "BertSpanLabeler": "models",
    "BertTagger": "models",
    "Lamb": "optimization",
    "TrainingSchedule": "training",
    "Trainer": "training",
    "Encoding": "tokenization",
    "TextLayer": "text_layer",
    "WarmupLinear": "optimization",
    "WordPieceTokenizer": "tokenization",
    "BertFeaturizer": "features.featurizer",
    "FeatureExtractor": "features.extractor",
    "ScalarMix": "features.scalar_mix",
    "export_saved_model": "export",
    "fill_mask": "masked_prediction",
    "learn_vocabulary": "vocabulary",
    "load_pretrained": "checkpoints.loading",
    "make_strategy": "strategies",
}

__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
