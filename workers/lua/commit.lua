-- A batch whose shard is in the store is done: set its bit, correct the counters to what the shard holds, drop its traces.
-- KEYS state done lease owner attempts checkpoints open counts reasons flags series parked lapses, then keys that expire with the run
-- ARGV batch bit shard_bytes counts_json finished_ttl_s length
-- Returns {1 if done now or 0 if it was before, run status}.
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1], ARGV[1] .. ':errors')
redis.call('HDEL', KEYS[12], ARGV[1])
redis.call('HDEL', KEYS[13], ARGV[1], ARGV[1] .. ':known')
if redis.call('SETBIT', KEYS[2], ARGV[2], 1) == 1 then
  return {0, redis.call('HGET', KEYS[1], 'status') or ''}
end
local stored = cjson.decode(ARGV[4])
local kinds = {c = {KEYS[8], {}}, r = {KEYS[9], stored.reasons}, f = {KEYS[10], stored.flags}}
for _, name in ipairs({'completed', 'failed', 'prompt_tokens', 'completion_tokens'}) do kinds.c[2][name] = stored[name] end
for _, field in ipairs(redis.call('HKEYS', KEYS[6])) do  -- what was counted by checkpoints, taken back
  local kind = kinds[string.sub(field, 1, 1)]
  if kind and string.sub(field, 2, 2) == ':' then
    redis.call('HINCRBY', kind[1], string.sub(field, 3), -tonumber(redis.call('HGET', KEYS[6], field)))
  end
end
for _, kind in pairs(kinds) do
  for name, amount in pairs(kind[2]) do redis.call('HINCRBY', kind[1], name, amount) end
end
redis.call('DEL', KEYS[6])
redis.call('SREM', KEYS[7], ARGV[1])
local done = redis.call('HINCRBY', KEYS[8], 'batches', 1)
redis.call('HINCRBY', KEYS[8], 'shards', 1)
redis.call('HINCRBY', KEYS[8], 'shard_bytes', ARGV[3])
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'cancelled' then
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
end
local batches = tonumber(redis.call('HGET', KEYS[1], 'batches') or '-1')
if status == 'running' and done >= batches then
  local now = redis.call('TIME')[1]
  local c = redis.call('HMGET', KEYS[8], 'completed', 'failed', 'prompt_tokens', 'completion_tokens')
  redis.call('LPUSH', KEYS[11], string.format('[%d,%s,%s,%s,%s]', now, c[1] or 0, c[2] or 0, c[3] or 0, c[4] or 0))
  redis.call('LTRIM', KEYS[11], 0, ARGV[6] - 1)
  redis.call('HSET', KEYS[1], 'status', 'complete', 'finished_at', now)
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
  status = 'complete'
end
return {1, status or ''}
