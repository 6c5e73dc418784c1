"""The version of Tidelog, which its package and images have too."""

VERSION = "0.1.0"
