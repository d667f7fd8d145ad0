"""Property tests here have no time limit for an example: a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("codecs", deadline=None)
settings.load_profile("codecs")
