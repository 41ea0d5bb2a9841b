"""How well learners do at equal privacy: data, competitors, the duel, and what the defaults are measured by."""
