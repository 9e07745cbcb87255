"""The predicates, one file a family; importing this package registers them all."""

from vmmref_models.families import ack, can, con, ctl, everywhere, gen, life, pub, rec, rng, slot

__all__ = ["ack", "can", "con", "ctl", "everywhere", "gen", "life", "pub", "rec", "rng", "slot"]
