"""What a person looks at: charts, tables, pictures and live panels, the same in notebooks, in the demo and on pages."""
