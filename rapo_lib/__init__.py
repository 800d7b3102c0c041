"""Learning emotional support from what the seeker does next: RAPO and RLFF-ESC.

Importing the package is light: torch is loaded only by the modules that compute.
"""

__version__ = "0.1.0"
