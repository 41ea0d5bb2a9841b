"""The core language: what a template is read into, and what every proof and every program is made from."""
