"""The range of times in tables: years 1 to 9999, as in Python and SQL."""

DAY_MIN, DAY_MAX = -719_162, 2_932_896  # since 1970
TICKS_MIN, TICKS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # microseconds since 1970
