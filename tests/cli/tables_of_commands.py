"""The tables, schemas and settings of the folder that commands run in."""

import numpy as np
import pandas as pd

COLUMNS = "--features=a,b --bounds=0,10 --label=class --labels=low,high"
SETTINGS = """
label = "class"
labels = ["low", "high"]
epsilon = 2.0
features = {a = [0, 10], b = [0, 10]}
options = {regularization = 0.05}
"""
SCHEMA = """
label = "bought"
labels = ["no", "yes"]
ignore = ["customer"]

[features]
age = [0, 100]
colour = {levels = ["red", "green"], other = true, missing = "indicator"}
member = {boolean = ["no", "yes"]}
"""
# Two classes that are easy to tell apart, and members who buy.
HIGH = np.where(np.arange(300) % 2 == 1, "high", "low")
GRADES = np.clip(np.random.default_rng(7).normal(np.where(HIGH == "high", 8, 2), 1.0, (2, 300)), 0, 10).round(3)
DATA = pd.DataFrame({"a": GRADES[0], "b": GRADES[1], "class": HIGH})
ROW, RNG = np.arange(400), np.random.default_rng(3)
SHOP = pd.DataFrame({"customer": [f"c{k}" for k in ROW], "age": RNG.integers(18, 90, 400)})
SHOP["colour"] = np.array(["red", "green", "blue", None], dtype=object)[ROW % 4]
SHOP["member"] = np.where(ROW % 2 == 0, "yes", "no")
SHOP["bought"] = np.where((ROW % 2 == 0) == (RNG.random(400) < 0.95), "yes", "no")
FIT_SHOP = "--schema shop.toml --epsilon 5 --out model.npz"
