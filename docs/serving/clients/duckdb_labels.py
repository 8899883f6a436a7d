"""A function of DuckDB that labels a column by a running `qcls-gguf serve`: see docs/serving.md."""

import sys

import duckdb
import httpx

COLOURS = ["red", "light blue", "none"]

with httpx.Client(base_url=sys.argv[1]) as client, duckdb.connect() as connection:

    def colour(text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "guided_choice": COLOURS}
        answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]["content"]

    connection.create_function("colour", colour)
    connection.execute("CREATE TABLE queries AS FROM (VALUES ('red summer dress'), ('light blue jeans')) AS t(query)")
    print(connection.sql("SELECT query, colour(query) AS colour FROM queries").fetchall())
