from specforge.dsl import Draft

recipe = Draft(vocab_size=128)
