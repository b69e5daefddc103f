"""Checkpoints and models of transformers, with signed attention and without.

Reading: `reading` opens a checkpoint once, `signing` signs a model, `convert` writes one.
Facts by class name: `kinds`, `examples` (random inputs), `families` (which model types can be signed).
Running models: `layer_hooks`, `module_hooks`, `linear_maps`, `projections`, `centring`.
Other libraries: `adapters` (peft), `sentence_folder` (sentence-transformers), `timm_vit`, `auto_classes` (the Auto
classes of transformers).
"""
