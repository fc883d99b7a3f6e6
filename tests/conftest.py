"""Small real encoders built in code; no test opens the network."""

import os

# Tiny matrices on a shared machine: two threads waiting for each other cost more than they earn.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
