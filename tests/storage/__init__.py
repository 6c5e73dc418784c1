"""One partition's log on disk: each part against a simple twin, and the whole against crashes."""
