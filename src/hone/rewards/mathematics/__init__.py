"""Answers to mathematical questions: spelling -> tokens -> a tree of values -> final form? -> equal?

`spelling` writes Unicode, LaTeX layout and fonts in one way, `tokens` cuts the text, `grammar` reads one answer as a
`tree`, with `units` for measured quantities; `final_form` names the operations that were left undone, `evaluation` is
arithmetic, and `equality` compares two trees. `limits` come first: no text of a policy raises, or takes long.
"""
