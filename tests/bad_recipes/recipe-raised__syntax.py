from specforge.dsl import Target

target = Target("tiny"
prompts = 5
