-- Give a batch to a worker for the length of a lease, unless it is done, held, or the run takes no work.
-- KEYS state done lease owner attempts checkpoints pushed parked lapses; ARGV batch bit token lease_ms model
-- Returns {outcome, attempt or owner, lapses, {index, completion, …}, {index:request, …}, errors, run
-- status}. Safe to repeat with the
-- same token. A batch of a cancelled run is given only if it has checkpoints: they are to be stored. The first claim of
-- a run that names no model decides which model it is; paths do not count, `/data/Qwen3-8B` is `Qwen/Qwen3-8B`.
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return {'unknown', ''} end
if redis.call('GETBIT', KEYS[2], ARGV[2]) == 1 then return {'done', ''} end
if status == 'paused' or (status == 'cancelled' and redis.call('EXISTS', KEYS[6]) == 0) then
  redis.call('SETBIT', KEYS[7], ARGV[2], 0)
  return {status, ''}
end
local function short(name) return string.lower(string.match(name, '[^/]+$') or name) end
local wanted = redis.call('HGET', KEYS[1], 'model') or redis.call('HGET', KEYS[1], 'served')
if status ~= 'cancelled' and wanted and ARGV[5] ~= '' and short(wanted) ~= short(ARGV[5]) then return {'other_model', wanted} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner = redis.call('HGET', KEYS[4], ARGV[1])
if owner and owner ~= ARGV[3] then
  local ends = redis.call('ZSCORE', KEYS[3], ARGV[1])
  if ends and tonumber(ends) > now then return {'held', owner} end
  redis.call('HINCRBY', KEYS[9], ARGV[1], 1)
end
local attempt
if owner == ARGV[3] then
  attempt = tonumber(redis.call('HGET', KEYS[5], ARGV[1]) or '1')
else
  attempt = redis.call('HINCRBY', KEYS[5], ARGV[1], 1)
end
local known = redis.call('HLEN', KEYS[6])
local lapses = tonumber(redis.call('HGET', KEYS[9], ARGV[1]) or '0')
if lapses > 1 and known > tonumber(redis.call('HGET', KEYS[9], ARGV[1] .. ':known') or '0') then
  lapses = 1  -- the silent ones brought something: it is not the batch that silences them
  redis.call('HSET', KEYS[9], ARGV[1], lapses)
end
if lapses > 0 then redis.call('HSET', KEYS[9], ARGV[1] .. ':known', known) end
if not wanted and ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'served', ARGV[5]) end
redis.call('HSET', KEYS[4], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[4]), ARGV[1])
redis.call('SETBIT', KEYS[7], ARGV[2], 1)
redis.call('HDEL', KEYS[8], ARGV[1])
local kept, deaths = {}, {}
local fields = redis.call('HGETALL', KEYS[6])
for i = 1, #fields, 2 do
  if not string.find(fields[i], ':', 1, true) then
    kept[#kept + 1] = fields[i]
    kept[#kept + 1] = fields[i + 1]
  elseif string.sub(fields[i], 1, 2) == 'd:' then
    deaths[#deaths + 1] = string.sub(fields[i], 3)
  end
end
return {'claimed', tostring(attempt), tostring(lapses), kept, deaths,
  redis.call('HGET', KEYS[5], ARGV[1] .. ':errors') or '0', status}
