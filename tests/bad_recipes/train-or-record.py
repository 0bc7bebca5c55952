from specforge.dsl import Recipe

recipe = Recipe(name="bad")
