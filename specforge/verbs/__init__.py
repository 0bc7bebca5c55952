"""In: parsed arguments. Out: what each verb of the command line does; one file per verb."""
