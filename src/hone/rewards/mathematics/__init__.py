"""Answers to mathematical questions: spelling -> tokens -> a tree of values -> final form? -> equal?

`spelling` writes Unicode, LaTeX layout and fonts in one way, `tokens` cuts the text and knows units, `grammar` reads
one answer as a `tree`; `final_form` names the operations that were left undone, and `equality` evaluates and compares
two trees. The limits in `tree` come first: no text of a policy raises, or takes long.
"""
