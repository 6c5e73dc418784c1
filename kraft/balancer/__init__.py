"""Load model, goals and plan. Built by a later step; empty until then."""
