"""Data sets from files or the Hub, and their collators."""

from hf_bidir.common.extras import extra

with extra("train"):  # for every file here, and so for every task
    import datasets as datasets
    import sklearn as sklearn
